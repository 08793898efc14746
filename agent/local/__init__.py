"""`--runtime local`: a small kubelet for the demo and for tests, with pods from a folder of manifests. `agent.main` alone imports it."""
