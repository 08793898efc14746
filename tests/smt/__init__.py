"""The agent in an emulated machine with SMT: two sockets of four cores of two threads, cgroup v2, real containers.

One boot serves all tests: three of its cores are isolated, which is hidden once that is tested. A second, smaller machine
serves `test_interrupts`, which moves the interrupts of the whole machine.

`setup` installs what is missing, `guest` boots Debian's kernel (virtme-ng, QEMU without KVM) on the host's own root,
read-only, and runs one program in it. The `scenario_*` programs run inside and report facts as lines of JSON; the
tests run outside and judge them. Emulation is ten to thirty times slower than the host: no time is asserted.
"""
