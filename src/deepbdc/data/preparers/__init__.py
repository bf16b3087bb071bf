"""One preparer for each official format: it finds the images in the archive, and the split and class of each.

:mod:`deepbdc.data.prepare` chooses the preparer, writes the files and verifies them. This file imports nothing.
"""
