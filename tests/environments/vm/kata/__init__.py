"""A shim with the effects of Kata's on the host: one QEMU for all containers of a pod, in its cgroup.

containerd runs `containerd-shim-kata-v2` from PATH: `tests.environments.vm.kata.install` puts a program of
that name into a folder, which is `tests.environments.vm.kata.shim`. It uses only the standard library, so
that it starts fast on an emulated machine too.
"""
