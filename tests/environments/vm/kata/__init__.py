"""A shim that does to the host what Kata's does: one QEMU for all containers of a pod, in a cgroup of the sandbox.

containerd runs `containerd-shim-kata-v2` from PATH: `tests.environments.vm.kata.install` puts a program of that name into a folder,
which is `tests.environments.vm.kata.shim`. It is the standard library's alone, and starts in a moment also on an emulated machine.
"""
