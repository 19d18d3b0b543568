// Swagger UI. It calls the service that serves this page, also behind a path prefix.

const base = new URL(".", location.href).href.replace(/\/$/, "");
const spec = await (await fetch("openapi.json")).json();
SwaggerUIBundle({
  spec: { ...spec, servers: [{ url: base }] },
  dom_id: "#ui",
  deepLinking: true,
  displayRequestDuration: true,
  tryItOutEnabled: true,
});
