"""Virtual machines of QEMU (TCG), in pods like those of KubeVirt and Kata, and the masks of their threads."""
