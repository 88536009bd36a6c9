{{/* The name of all objects. */}}
{{- define "signal.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* The labels of the pods. */}}
{{- define "signal.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "signal.labels" -}}
{{ include "signal.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The text of a setting: lists are joined, and large numbers have no exponent. */}}
{{- define "signal.text" -}}
{{- if kindIs "slice" . -}}
{{ join "," . }}
{{- else if and (kindIs "float64" .) (eq (floor .) .) -}}
{{ int64 . }}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* The directory of a file. The container sees a change of the Secret, because the whole directory is mounted. */}}
{{- define "signal.directory" -}}
/etc/tornado-signal/{{ . }}
{{- end -}}

{{/* The variables of the server, as YAML. */}}
{{- define "signal.variables" -}}
{{- $settings := dict
      "address" "0.0.0.0"
      "admin_address" "0.0.0.0"
      "log_format" "json"
      "drain_delay_ms" (eq .Values.store "redis" | ternary 5000 0) -}}
{{- $settings = merge (dict "store" .Values.store "port" 3000 "admin_port" 3001 "data_dir" "/data/sessions")
      .Values.settings $settings -}}
{{- range $name, $file := .Values.files -}}
{{- $path := include "signal.directory" $name -}}
{{- $_ := set $settings $name (hasKey $file "key" | ternary (printf "%s/%s" $path (get $file "key")) $path) -}}
{{- end -}}
{{- range $name, $value := $settings }}
TORNADO_SIGNAL_{{ upper $name }}: {{ include "signal.text" $value | quote }}
{{- end -}}
{{- end -}}

{{/* An origin that the server allows. Its health check refuses others. */}}
{{- define "signal.origin" -}}
{{- $allowed := include "signal.text" (.Values.settings.allowed_origins | default "any") -}}
{{- $first := splitList "," $allowed | first | trim -}}
{{- eq $first "any" | ternary "https://probe.invalid" (replace "*" "probe" $first) -}}
{{- end -}}
