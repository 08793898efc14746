"""`corepin cmk`: the commands that Intel CMK's operators know. What runs inside of containers is the program `cmk`, not here."""
