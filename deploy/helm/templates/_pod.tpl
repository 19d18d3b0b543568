{{- /* The name of all parts. */}}
{{- define "bert.name" }}{{ default .Release.Name .Values.fullnameOverride }}{{ end }}

{{- /* Whether a value of BERT_METRICS means open. YAML reads `on` and `yes` as true. */}}
{{- define "bert.open" }}{{ has (lower .) (list "open" "true" "on" "yes" "1" "<nil>") }}{{ end }}

{{- /* The pods. The values podMetadata and podSpec are merged into them. */}}
{{- define "bert.pod" }}
metadata:
  labels: { app.kubernetes.io/name: {{ include "bert.name" . | quote }} }
spec:
  enableServiceLinks: false # they would set BERT_PORT=tcp://... if the Service is called bert
  automountServiceAccountToken: false # the service never talks to the cluster
  terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    seccompProfile: { type: RuntimeDefault }
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels: { app.kubernetes.io/name: {{ include "bert.name" . | quote }} }
  containers:
    - name: bert
      image: {{ .Values.image | quote }}
      ports:
        - { name: http, containerPort: 8000 }
      env:
        {{- range $name, $value := .Values.env }}
        {{- /* All numbers of a values file are floating-point ones: not 1e+06. */}}
        {{- if and (kindIs "float64" $value) (eq $value (floor $value)) }}
        {{- $value = printf "%.0f" $value }}
        {{- end }}
        {{- if not (kindIs "invalid" $value) }}
        - { name: {{ $name }}, value: {{ $value | toString | quote }} }
        {{- end }}
        {{- end }}
        {{- with .Values.keysSecret }}
        - name: BERT_API_KEYS
          valueFrom:
            secretKeyRef: { name: {{ . }}, key: keys }
        {{- end }}
      startupProbe: # loading may take five minutes; until then the other two probes wait
        httpGet: { path: /health/ready, port: http }
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 150
      readinessProbe: # false while draining: no new requests
        httpGet: { path: /health/ready, port: http }
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 2
      livenessProbe: # false once inference processes cannot be replaced: only a restart helps
        httpGet: { path: /health/live, port: http }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      lifecycle:
        preStop:
          sleep: { seconds: {{ .Values.preStopSeconds }} }
      resources: {{ toJson .Values.resources }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: { drop: [ALL] }
      volumeMounts:
        - { name: tmp, mountPath: /tmp }
  volumes:
    - name: tmp
      emptyDir: { medium: Memory, sizeLimit: 64Mi }
{{- end }}

{{- /* Merges the second of two maps into the first, as `kubectl patch` does: maps by key, and lists by the `name` of their
items; items of other names, or without one, are appended. Other values replace those of the first. */}}
{{- define "bert.merge" }}
{{- $base := index . 0 }}
{{- range $key, $value := index . 1 }}
{{- $old := get $base $key }}
{{- if and (kindIs "map" $old) (kindIs "map" $value) }}
{{- include "bert.merge" (list $old $value) }}
{{- else if and (kindIs "slice" $old) (kindIs "slice" $value) }}
{{- range $item := $value }}
{{- $same := dict }}
{{- range $old }}
{{- if and (kindIs "map" .) (kindIs "map" $item) (hasKey $item "name") (eq (get . "name") (get $item "name")) }}
{{- $same = . }}
{{- end }}
{{- end }}
{{- if $same }}
{{- include "bert.merge" (list $same $item) }}
{{- else }}
{{- $_ := set $base $key (append (get $base $key) $item) }}
{{- end }}
{{- end }}
{{- else }}
{{- $_ := set $base $key $value }}
{{- end }}
{{- end }}
{{- end }}
