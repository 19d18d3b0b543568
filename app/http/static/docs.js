// Swagger UI. It calls the service that serves this page, also behind a path prefix.

const base = new URL(".", location.href).href.replace(/\/$/, "");

async function load() {
  const response = await fetch("openapi.json");
  if (!response.ok) throw new Error(response.status);
  return response.json();
}

function show(spec) {
  SwaggerUIBundle({
    spec: { ...spec, servers: [{ url: base }] },
    dom_id: "#ui",
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
  });
}

function fail() {
  const problem = document.createElement("p");
  problem.textContent = "The OpenAPI document could not be loaded; reload the page.";
  document.querySelector("#ui").append(problem);
}

load().then(show, fail);
