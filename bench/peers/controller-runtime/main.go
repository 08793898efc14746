// A Go webhook of the usual kind, to measure corepin against: controller-runtime's admission.Handler decodes the pod
// into the API's types, changes a copy, and answers the difference between the two documents.
//
// It makes the same changes as `corepin webhook` with its built-in mutations: volumes, mounts, CMK_NUM_CORES, the
// toleration and the marker annotation, each only where it is missing.
package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"log"
	"net/http"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	exclusiveCores = corev1.ResourceName("cmk.intel.com/exclusive-cores")
	injected       = "cmk.intel.com/resources-injected"
	guarded        = "guard.corepin.io/pod"
	numCores       = "CMK_NUM_CORES"
)

var (
	directoryOrCreate = corev1.HostPathDirectoryOrCreate
	volumes           = []corev1.Volume{
		hostDirectory("cmk-install-dir", "/opt/bin"),
		hostDirectory("cmk-config-dir", "/etc/cmk"),
	}
	mounts = []corev1.VolumeMount{
		{Name: "cmk-install-dir", MountPath: "/opt/bin", ReadOnly: true},
		{Name: "cmk-config-dir", MountPath: "/etc/cmk", ReadOnly: true},
	}
	toleration = corev1.Toleration{
		Key: "cmk", Operator: corev1.TolerationOpEqual, Value: "true", Effect: corev1.TaintEffectNoSchedule,
	}
)

func hostDirectory(name, path string) corev1.Volume {
	source := corev1.HostPathVolumeSource{Path: path, Type: &directoryOrCreate}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &source}}
}

// injector completes the pods that claim cores.
type injector struct {
	decoder admission.Decoder
}

func (i *injector) Handle(_ context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := i.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if !claimsCores(pod) {
		return admission.Allowed("")
	}
	inject(pod)
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

func claimsCores(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for index := range containers {
			if _, claims := containers[index].Resources.Requests[exclusiveCores]; claims {
				return true
			}
		}
	}
	return false
}

func inject(pod *corev1.Pod) {
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[injected] = "true"
	pod.Annotations[guarded] = "true"
	for _, volume := range volumes {
		if !hasVolume(pod.Spec.Volumes, volume.Name) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
		}
	}
	if !tolerates(pod.Spec.Tolerations) {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, toleration)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for index := range containers {
			injectContainer(&containers[index])
		}
	}
}

func injectContainer(container *corev1.Container) {
	for _, mount := range mounts {
		if !hasMount(container.VolumeMounts, mount.MountPath) {
			container.VolumeMounts = append(container.VolumeMounts, mount)
		}
	}
	cores, claims := container.Resources.Requests[exclusiveCores]
	if claims && !hasEnv(container.Env, numCores) {
		container.Env = append(container.Env, corev1.EnvVar{Name: numCores, Value: cores.String()})
	}
}

func hasVolume(volumes []corev1.Volume, name string) bool {
	for index := range volumes {
		if volumes[index].Name == name {
			return true
		}
	}
	return false
}

func hasMount(mounts []corev1.VolumeMount, path string) bool {
	for index := range mounts {
		if mounts[index].MountPath == path {
			return true
		}
	}
	return false
}

func hasEnv(env []corev1.EnvVar, name string) bool {
	for index := range env {
		if env[index].Name == name {
			return true
		}
	}
	return false
}

func tolerates(tolerations []corev1.Toleration) bool {
	for _, other := range tolerations {
		if other == toleration {
			return true
		}
	}
	return false
}

func handler() (http.Handler, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	webhook := &admission.Webhook{Handler: &injector{decoder: admission.NewDecoder(scheme)}}
	standalone, err := admission.StandaloneWebhook(webhook, admission.StandaloneOptions{MetricsPath: "/mutate"})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/mutate", standalone)
	mux.Handle("/metrics", promhttp.HandlerFor(metrics.Registry, promhttp.HandlerOpts{}))
	return mux, nil
}

func main() {
	listen := flag.String("listen", "127.0.0.1:9443", "HOST:PORT to serve")
	certificate := flag.String("tls-cert", "tls.crt", "certificate chain")
	key := flag.String("tls-key", "tls.key", "its private key")
	flag.Parse()
	log.SetOutput(os.Stderr)
	mux, err := handler()
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{
		Addr:              *listen,
		Handler:           mux,
		MaxHeaderBytes:    1 << 20,
		IdleTimeout:       90 * time.Second, // as controller-runtime's own webhook server
		ReadHeaderTimeout: 32 * time.Second,
		TLSConfig:         &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12},
	}
	log.Fatal(server.ListenAndServeTLS(*certificate, *key))
}
