"""What is put into a unit, besides what its image has: `contents.py` says what, the other modules are what.

Kernels that run on GPUs import this package where it is installed, so it loads nothing by itself.
"""
