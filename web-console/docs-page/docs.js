// No validator badge: it would send the document's address to a host outside.
SwaggerUIBundle({
  url: '../openapi.json',
  dom_id: '#swagger-ui',
  validatorUrl: null,
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: true,
});
