"""The kubelet's own CPU policy: its state file and its configz. Nothing here writes to the kubelet."""
