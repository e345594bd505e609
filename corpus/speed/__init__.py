"""The published speed tables: Cake's kernels beside the fastest public ones, measured, checked and recorded in one run.

    python -m corpus.speed prepare DIR [--cute PYTHON]      compile ours (and the CuTe DSL peers); no GPU needed
    python -m corpus.speed run DIR OUT [--table NAME]       on the GPU machine, everything compiled beforehand but Triton
    python -m corpus.speed record OUT                       corpus/results/speed/*.json, then docs/speed.md from them

Every row holds its raw samples, the programs that ran (content ids, cubin hashes), the conditions, and what the float64
check of all its outputs found. A loss is a row like any other and comes first on the page.
"""
