"""Virtual machines of QEMU (TCG), in pods as KubeVirt and Kata make them, and what the kernel says of each thread."""
