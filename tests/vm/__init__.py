"""Real QEMU (TCG) machines in pods of KubeVirt and Kata, and the kernel's masks of their threads."""
