"""Data sets, their splits, and the transforms from images to network input.

This file imports nothing, so that the command line can list data sets without loading torch.
"""
