{{- /* The image of all pods: a digest goes before a tag, and the version of the chart's programs is the last resort. */}}
{{- define "corepin.image" -}}
{{- with .Values.image -}}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
