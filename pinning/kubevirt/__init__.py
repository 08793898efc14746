"""KubeVirt's own rules for its virtual machines. corepin's annotations are handled in `pinning.pods`."""
