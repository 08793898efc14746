// The runtime's side of NRI, as containerd has it inside, for the tests of plugins: commands on stdin, answers on
// stdout, one line of JSON each.
//
//	nri-runtime SOCKET REQUEST_TIMEOUT
//
// The same source builds with every version that has a file of modules here. Before 0.12 all events of pods and
// containers share one type and go to plugins as StateChange.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// A command names what to do, and carries the request as protobuf's JSON.
type command struct {
	Do      string          `json:"do"`
	Request json.RawMessage `json:"request"`
}

// An answer carries the reply or the error, and how long NRI took.
type answer struct {
	Reply json.RawMessage `json:"reply,omitempty"`
	Error string          `json:"error,omitempty"`
	Nanos int64           `json:"nanos"`
}

// A handler does one kind of command.
type handler func(ctx context.Context, request json.RawMessage) (json.RawMessage, time.Duration, error)

// What a plugin is told when it comes, and what plugins said.
type state struct {
	sync.Mutex
	held         *api.SynchronizeRequest
	synchronized []json.RawMessage // one for each plugin that came: its updates, or the error
	requested    []json.RawMessage // updates that nobody asked for
}

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(socket, timeout string) error {
	patience, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	adaptation.SetPluginRequestTimeout(patience)
	seen := &state{held: &api.SynchronizeRequest{}}
	nothing := filepath.Join(filepath.Dir(socket), "nothing") // no plugins are launched from here
	runtime, err := adaptation.New("test-runtime", "1.2.3", seen.synchronize, seen.update,
		adaptation.WithSocketPath(socket),
		adaptation.WithPluginPath(nothing),
		adaptation.WithPluginConfigPath(nothing))
	if err != nil {
		return err
	}
	if err := runtime.Start(); err != nil {
		return err
	}
	defer runtime.Stop()
	seen.forget() // plugins that are launched from here are synchronized even when there are none
	return serve(runtime, seen)
}

// serve answers commands until there are no more; the first line says that plugins may come.
func serve(runtime *adaptation.Adaptation, seen *state) error {
	do := handlers(runtime, seen)
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(answer{}); err != nil {
		return err
	}
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	for {
		var next command
		if err := in.Decode(&next); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := out.Encode(answered(runtime, do[next.Do], next)); err != nil {
			return err
		}
	}
}

func answered(runtime *adaptation.Adaptation, do handler, next command) answer {
	if do == nil {
		return answer{Error: fmt.Sprintf("no such command: %q", next.Do)}
	}
	defer runtime.BlockPluginSync().Unblock() // as containerd: a plugin that comes is there, or not yet
	reply, took, err := do(context.Background(), next.Request)
	if err != nil {
		return answer{Error: err.Error(), Nanos: took.Nanoseconds()}
	}
	return answer{Reply: reply, Nanos: took.Nanoseconds()}
}

func handlers(runtime *adaptation.Adaptation, seen *state) map[string]handler {
	return map[string]handler{
		"Hold":                seen.hold,
		"Synchronized":        listed(seen, &seen.synchronized),
		"Requested":           listed(seen, &seen.requested),
		"CreateContainer":     asking(runtime.CreateContainer),
		"UpdateContainer":     asking(runtime.UpdateContainer),
		"StopContainer":       asking(runtime.StopContainer),
		"RunPodSandbox":       telling(runtime.RunPodSandbox),
		"StopPodSandbox":      telling(runtime.StopPodSandbox),
		"RemovePodSandbox":    telling(runtime.RemovePodSandbox),
		"PostCreateContainer": telling(runtime.PostCreateContainer),
		"StartContainer":      telling(runtime.StartContainer),
		"PostStartContainer":  telling(runtime.PostStartContainer),
		"PostUpdateContainer": telling(runtime.PostUpdateContainer),
		"RemoveContainer":     telling(runtime.RemoveContainer),
	}
}

// message is a pointer to a message of protobuf.
type message[T any] interface {
	*T
	proto.Message
}

// asking makes a handler of a method that plugins answer.
func asking[T, U any, Request message[T], Reply message[U]](
	method func(context.Context, Request) (Reply, error),
) handler {
	return func(ctx context.Context, text json.RawMessage) (json.RawMessage, time.Duration, error) {
		request := Request(new(T))
		if err := protojson.Unmarshal(text, request); err != nil {
			return nil, 0, err
		}
		started := time.Now()
		reply, err := method(ctx, request)
		took := time.Since(started)
		if err != nil {
			return nil, took, err
		}
		written, err := encoded(reply)
		return written, took, err
	}
}

// telling makes a handler of a method that plugins only hear of.
func telling[T any, Request message[T]](method func(context.Context, Request) error) handler {
	return asking(func(ctx context.Context, request Request) (*api.Empty, error) {
		return &api.Empty{}, method(ctx, request)
	})
}

// forget drops what plugins said.
func (s *state) forget() {
	s.Lock()
	defer s.Unlock()
	s.synchronized, s.requested = nil, nil
}

// hold takes what the next plugin will be told.
func (s *state) hold(_ context.Context, text json.RawMessage) (json.RawMessage, time.Duration, error) {
	held := &api.SynchronizeRequest{}
	if err := protojson.Unmarshal(text, held); err != nil {
		return nil, 0, err
	}
	s.Lock()
	defer s.Unlock()
	s.held = held
	return nil, 0, nil
}

// listed makes a handler that shows one of the lists.
func listed(s *state, list *[]json.RawMessage) handler {
	return func(context.Context, json.RawMessage) (json.RawMessage, time.Duration, error) {
		s.Lock()
		defer s.Unlock()
		text, err := json.Marshal(append([]json.RawMessage{}, *list...))
		return text, 0, err
	}
}

// synchronize sends the existing pods and containers to a new plugin.
func (s *state) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	s.Lock()
	held := s.held
	s.Unlock()
	updates, failed := tell(ctx, held.Pods, held.Containers)
	text, err := encoded(&api.SynchronizeResponse{Update: updates})
	if failed != nil {
		text, err = json.Marshal(map[string]string{"error": failed.Error()})
	}
	if err != nil {
		return err
	}
	s.Lock()
	defer s.Unlock()
	s.synchronized = append(s.synchronized, text)
	return failed
}

// update takes what a plugin wants changed without being asked.
func (s *state) update(_ context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	text, err := encoded(&api.UpdateContainersRequest{Update: updates})
	if err != nil {
		return nil, err
	}
	s.Lock()
	defer s.Unlock()
	s.requested = append(s.requested, text)
	return nil, nil
}

func encoded(message proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(message)
}
