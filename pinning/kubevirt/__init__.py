"""KubeVirt's virtual machines held to KubeVirt's own rules. What corepin's annotations mean is `pinning.pods`."""
