"""Tuning of a family: seeds, gates, predictions, measurement, buckets, validation and the table; docs/tuning.md is the page.

candidates   every binding of every member through the gates (bind, verify, compile), rejections counted with their reason
rank         predicted times, and which candidates are worth a compile and a measurement
campaign     what `--prepare` writes and a GPU machine reads: candidates, cubins, shapes, settings
measure      one shape: the candidates checked by the contract's judge and timed interleaved
run          the campaign on the GPU: a journal that survives the end of its process, `python -m corpus.tuning.run`
buckets      from times to routes: guards, their order, what pays more than the noise
validate     held-out, boundary, overlapping, missing and unseen, each with its loss
table        the route table and the committed record
"""
