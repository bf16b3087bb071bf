"""One preparer for each official format: what is in the archive, and where each image belongs.

Nothing is imported here; :mod:`deepbdc.data.prepare` chooses, writes and verifies.
"""
