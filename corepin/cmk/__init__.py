"""`corepin cmk`: the commands of Intel CMK for operators. Containers call the program `cmk` instead (shim/)."""
