"""`--runtime local`: a small kubelet for the demo and for tests, which runs the pods of a folder of manifests."""
