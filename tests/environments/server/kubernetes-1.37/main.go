// Command policy judges new pods by a ValidatingAdmissionPolicy, with the API server's own code and limits of cost. The
// policy is a file, pods come as JSON on stdin; a line on stdout is the message of a refusal, "" for an admitted pod.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

func main() {
	validator, err := compile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for pods := json.NewDecoder(os.Stdin); ; {
		pod := &corev1.Pod{}
		if err := pods.Decode(pod); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q\n", refusal(validator, pod))
	}
}

// compile does what the API server does with a policy, and takes only what it takes in new objects.
func compile(path string) (validating.Validator, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var policy v1.ValidatingAdmissionPolicy
	if err := json.Unmarshal(data, &policy); err != nil {
		return nil, err
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	full, inMessages := cel.OptionalVariableDeclarations{HasAuthorizer: true}, cel.OptionalVariableDeclarations{}
	for _, given := range policy.Spec.Variables {
		variable := &validating.Variable{Name: given.Name, Expression: given.Expression}
		if result := compiler.CompileCELExpression(variable, full, environment.NewExpressions); result.Error != nil {
			return nil, fmt.Errorf("variable %s: %v", given.Name, result.Error)
		}
		compiler.CompileAndStoreVariable(variable, full, environment.NewExpressions)
	}
	var conditions, validations, messages []cel.ExpressionAccessor
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	for _, given := range policy.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: given.Expression, Message: given.Message})
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: given.MessageExpression})
	}
	matcher := matchconditions.NewMatcher(
		compiler.CompileCondition(conditions, full, environment.NewExpressions), policy.Spec.FailurePolicy, "policy", "validate", policy.Name)
	return validating.NewValidator(
		compiler.CompileCondition(validations, full, environment.NewExpressions), matcher,
		compiler.CompileCondition(nil, full, environment.NewExpressions),
		compiler.CompileCondition(messages, inMessages, environment.NewExpressions), policy.Spec.FailurePolicy, nil), nil
}

// refusal returns the first message about a pod that is to be created; expressions that end in an error have one too.
func refusal(validator validating.Validator, pod *corev1.Pod) string {
	kind, resource := corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithResource("pods")
	attributes := &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(
			pod, nil, kind, pod.Namespace, pod.Name, resource, "", admission.Create, &metav1.CreateOptions{}, false, nil),
		VersionedKind:   kind,
		VersionedObject: admission.NewLazyObject(pod),
	}
	result := validator.Validate(
		context.Background(), schema.GroupVersionResource(resource), attributes, nil, &corev1.Namespace{}, apiservercel.RuntimeCELCostBudget, nil)
	for _, decision := range result.Decisions {
		if decision.Action != validating.ActionAdmit {
			return decision.Message
		}
	}
	return ""
}
