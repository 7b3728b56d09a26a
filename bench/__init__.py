"""What penstock costs, measured: `python -m bench` runs everything and writes RESULTS.md.

Every measurement runs in fresh processes on a fresh database on a real disk, with shipped
defaults, after a warm-up; what is compared runs in turns. A figure is the median of its runs.
"""
