"""Comparisons of systems: each claim about them as a measurement that anyone can take again.

system_race.py  race_settings.py      language models of one size on one text (`heed race`)
systems.py                            which systems there are; the width at which one has so many parameters
layer_times.py  generation_cost.py    time of a layer by length and width; time and memory of one more token
gradient_flow.py                      how far back a loss reaches
recall_tasks.py                       copy, recall, induction, needle: accuracy by distance
translation_race.py                   translators on the same pairs, by length (`heed race --translation`)
translation_data.py                   pairs joined, split, and put into buckets by length
scale_sweep.py  loss_surface.py       a sweep over size and data, its fit, what it foretells (`heed scale`)
fits.py  measurement_store.py         exponents and rates with intervals; measurements on disk
sample_text.py                        texts that come along
worker_processes.py                   systems measured in processes of their own, in one folder
experiment.py  report.py              measured until the end or Ctrl-C; written as HTML, Markdown, CSV
race_report.py  scale_report.py  translation_report.py    what each report says, from its numbers alone
"""
