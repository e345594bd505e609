"""The Cake tool server: engine, MCP tools, command line, workspace and worker processes."""

__version__ = "0.1.0"
