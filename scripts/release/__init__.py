"""`make release`: reproducible build of every file that is published with a version.

The input is the committed tree. The output must not depend on the time, on names of the machine or on the order
of files in a directory.
"""
