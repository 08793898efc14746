"""`corepin cmk`: Intel CMK's commands for operators. Containers call the separate program `cmk` (shim/)."""
