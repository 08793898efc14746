{{- /* The image of all pods, with the digest if one is set, else the tag, else the chart's appVersion. */}}
{{- define "corepin.image" -}}
{{- with .Values.image -}}
{{- .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}
