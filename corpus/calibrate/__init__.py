"""Calibration: microbenchmarks in Cake IR, what one device answers to them, and the file that keeps it.

`probes` lists what is measured, `prepare` makes jobs of it (no GPU), `run` measures them (GPU, no torch), `record` turns the answers into
`corpus/calibration/<device>.json`. The cost model reads that file through `analyses.cost.calibration`. `cake calibrate` drives all of it.
"""

from __future__ import annotations
