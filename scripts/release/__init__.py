"""`make release`: reproducible build of every file that is published with a version.

The input is the committed tree. Nothing here may depend on the time, on names of the machine or on the order
in which a file system lists its files.
"""
