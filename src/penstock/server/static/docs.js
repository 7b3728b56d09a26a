// Renders /openapi.json. Everything is put in as text, never as markup.

const METHODS = ["get", "post", "put", "delete"];

function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// What a shape looks like, with references followed a few levels deep.
function shape(schema, schemas, depth = 0) {
  if (!schema) return "any";
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth > 3 ? name : shape(schemas[name], schemas, depth);
  }
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) return choices.map((one) => shape(one, schemas, depth)).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") {
    const items = schema.items ?? schema.prefixItems?.[0];
    return `[${shape(items, schemas, depth + 1)}, …]`;
  }
  if (schema.properties) {
    const indent = "  ".repeat(depth + 1);
    const required = new Set(schema.required ?? []);
    const fields = Object.entries(schema.properties).map(([name, field]) => {
      const mark = required.has(name) ? "" : "?";
      return `${indent}"${name}"${mark}: ${shape(field, schemas, depth + 1)}`;
    });
    return `{\n${fields.join(",\n")}\n${"  ".repeat(depth)}}`;
  }
  if (schema.type === "object") {
    return `{name: ${shape(schema.additionalProperties, schemas, depth + 1)}}`;
  }
  return schema.type ?? "any";
}

function table(headings, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const heading of headings) head.append(element("th", heading));
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const cell of row) line.insertCell().textContent = cell;
  }
  return made;
}

function operation(method, path, described, schemas) {
  const made = element("details");
  const summary = element("summary");
  summary.append(
    element("span", method.toUpperCase(), "method"),
    element("code", path),
    element("span", ` ${described.summary ?? ""}`, "what"),
  );
  made.append(summary);
  if (described.description) made.append(element("p", described.description));
  if (described.parameters?.length) {
    const rows = described.parameters.map((one) => [
      one.name,
      one.in,
      shape(one.schema, schemas),
      one.description ?? "",
    ]);
    made.append(table(["parameter", "in", "type", "meaning"], rows));
  }
  const body = described.requestBody?.content?.["application/json"];
  if (body) made.append(element("h4", "Body"), element("pre", shape(body.schema, schemas)));
  made.append(element("h4", "Answers"));
  for (const [status, answer] of Object.entries(described.responses)) {
    made.append(element("p", `${status}: ${answer.description}`));
    if (Number(status) >= 400) continue;
    for (const [type, content] of Object.entries(answer.content ?? {})) {
      made.append(element("code", type), element("pre", shape(content.schema, schemas)));
    }
  }
  return made;
}

async function show() {
  const place = document.getElementById("operations");
  const answer = await fetch("/openapi.json");
  if (!answer.ok) throw new Error(`/openapi.json: ${answer.status}`);
  const found = await answer.json();
  document.getElementById("version").textContent = found.info.version;
  const schemas = found.components.schemas;
  const groups = new Map();
  for (const [path, methods] of Object.entries(found.paths)) {
    for (const method of METHODS.filter((one) => one in methods)) {
      const tag = methods[method].tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(method, path, methods[method], schemas));
    }
  }
  place.replaceChildren();
  for (const [tag, made] of groups) place.append(element("h2", tag), ...made);
}

show().catch((error) => {
  document.getElementById("operations").textContent = String(error);
});
