// The page at /docs: the OpenAPI document, as Swagger UI shows it.

const { SwaggerUIBundle } = window;

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#reference",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
});
