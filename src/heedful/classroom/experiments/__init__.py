"""Comparisons of systems: every claim about them is a measurement that anyone can repeat.

system_race.py  systems.py            language models of one size on one text (`heed race`), and their widths
layer_times.py                        time of a layer by length and width; time and memory of one more token
gradient_flow.py                      how far back a loss reaches; lines and rates with intervals
recall_tasks.py                       copy, recall, induction, needle: accuracy by distance
translation_race.py                   translators on the same pairs, by length (`heed race --translation`)
translation_data.py                   pairs joined, split, and put into buckets by length; bundled texts
scale_sweep.py  loss_surface.py       a sweep over size and data, its fit, and its predictions (`heed scale`)
measurement_store.py                  comparisons: lists of measurements, kept on disk, in several processes
report.py  race_report.py             reports as HTML, Markdown and CSV, written from the numbers alone
ledger.py  verify.py                  the published figures, and the commands that measure them again
"""
