"""How well the cost model ranks: schedules drawn by a committed seed, measured, and held against its predictions.

workloads    contracts, the kernels that serve them, development shapes and test shapes
draw         bindings drawn from the domains that the texts declare, through the gates of tuning
prepare      a folder with a campaign per workload (`corpus.tuning.campaign`), for a GPU machine
run          the campaigns measured, each into its journal; `corpus.tuning.run` says what survives what
record       journals into `corpus/results/ranking/SET.json`: every point with its raw samples
points       those files, and what they are worth after the texts have changed
predict      the model's times of the points, terms of it taken out
statistics   rank correlation, regret and error; what is left out and why
figures      all of it into `corpus/results/cost-ranking.json`
plots        the pictures of docs/cost-model.md

The model is looked at on development shapes alone. Test shapes were written down before anything was measured and are measured
once, when the model is final.
"""
