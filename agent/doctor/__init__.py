"""What `corepin doctor` looks at, and the facts it rests on. It only reads."""
