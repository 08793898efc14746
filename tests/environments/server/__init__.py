"""Real servers for the tests: kube-apiserver, etcd and kubectl, built from pinned Go modules.

`python -m tests.environments.server` builds what is missing; `tests.environments.server.fixture` starts them for a test.
"""
