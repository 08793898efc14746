"""Real servers for the tests: kube-apiserver, etcd and kubectl, built from pinned Go modules.

`python -m tests.servers` builds what is missing; `tests.servers.fixture` starts them for a test.
"""
