"""The mutation engine: systematic single edits of right programs, judged by the verifier and by the value reading.

`docs/mutation.md` says what it measures and how to run it. `python3 dev.py mutation` is the full run.
"""
