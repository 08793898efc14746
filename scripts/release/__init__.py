"""What `make release` builds: everything that is handed out with a version, the same bytes whenever it is built again.

What is built is what is committed. Nothing here may depend on the time, on names of the machine or on the order in
which a file system lists its files.
"""
