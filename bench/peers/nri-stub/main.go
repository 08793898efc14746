// An NRI plugin of the usual kind, the peer that the agent's is measured against: the real stub, and a handler that
// answers every container with the same CPUs and the same environment.
package main

import (
	"context"
	"flag"
	"log"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

const cpus = "2-3"

// environment is as large as the agent's.
var environment = map[string]string{
	"CMK_CPUS_ASSIGNED":      "2,3",
	"CMK_CPUS_ASSIGNED_MASK": "C",
	"CMK_CPUS_SHARED":        "0,1",
	"CMK_CPUS_INFRA":         "0,1",
}

// plugin has the agent's events that take part in the creation of a container.
type plugin struct{}

func (plugin) CreateContainer(
	context.Context, *api.PodSandbox, *api.Container,
) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjustment := &api.ContainerAdjustment{}
	adjustment.SetLinuxCPUSetCPUs(cpus)
	for key, value := range environment {
		adjustment.AddEnv(key, value)
	}
	return adjustment, nil, nil
}

func (plugin) ValidateContainerAdjustment(context.Context, *api.ValidateContainerAdjustmentRequest) error {
	return nil
}

func main() {
	socket := flag.String("socket", "", "NRI's socket")
	flag.Parse()
	peer, err := stub.New(plugin{}, stub.WithPluginName("peer"), stub.WithPluginIdx("10"), stub.WithSocketPath(*socket))
	if err != nil {
		log.Fatal(err)
	}
	if err := peer.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}
