//! `/v1/modules/{module}/openapi.json`: the procedures of a module as operations of their own, for generators of typed clients.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Mutex, MutexGuard},
};

use axum::{extract::State, response::Response};
use bytes::Bytes;
use reprise_abi::{AbortSchema, ProcedureSchema};
use reprise_api::{FieldInfo, TypeInfo};
use reprise_base::{Grant, MemoryKind};
use reprise_router::{Deployed, Module, ModuleId};
use serde_json::{Map, Value, json};

use crate::{
    docs,
    front::PathName,
    limits::DOCUMENTS_KEPT_BYTES_MAX,
    list_page::json_answer,
    refusal::Refusal,
    schema::type_info,
    state::{AppState, Parts},
    target::no_module,
};

/// The path that describes every call of the server.
const CALL_POINTER: &str = "/paths/~1v1~1call~1{module}~1{procedure}/post";
/// Integers of 64 bits as text.
const SIGNED_PATTERN: &str = "^-?[0-9]{1,19}$";
const UNSIGNED_PATTERN: &str = "^[0-9]{1,20}$";

/// How a reference to a component begins.
const SCHEMAS: &str = "#/components/schemas/";

/// Which way a value goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueDirection {
    In,
    Out,
}

/// The schemas that the document's paths use, by name.
#[derive(Default)]
struct Components {
    /// Schemas of the server that any call refers to, and one for each named struct of the module.
    schemas: Map<String, Value>,
    /// The names of those of the server.
    served: BTreeSet<String>,
    /// The structs of each name: of two that differ the second has a number behind it.
    named: BTreeMap<String, Vec<Vec<FieldInfo>>>,
}

/// Describes a module's procedures
///
/// Returns an OpenAPI document with one operation for each procedure of the version in service. It has the types of arguments and
/// result, and the module's own documentation.
#[utoipa::path(
    get,
    path = "/v1/modules/{module}/openapi.json",
    tag = "Modules",
    params(("module" = String, Path)),
    responses(
        (status = 200, description = "OpenAPI document", body = Object),
    )
)]
pub async fn module_openapi(State(state): State<AppState>, PathName(name): PathName) -> Result<Response, Refusal> {
    let deployed = state.router.deployed();
    let module = deployed.current.get(&name).ok_or_else(|| no_module(&deployed, &name))?;
    if let Some(text) = state.documents.find(module.id) {
        return Ok(json_answer(text));
    }
    let served = serde_json::to_value(docs::openapi());
    let served = served.map_err(|_| Refusal::internal("the API's description can't be written"))?;
    let text = Bytes::from(document(module, served).to_string());
    state.documents.keep(module.id, &text, &state, &deployed);
    Ok(json_answer(text))
}

/// Documents that were asked for, by the version of the module: it never changes, and neither does its document.
#[derive(Default)]
pub struct Documents(Mutex<VecDeque<KeptDocument>>);

struct KeptDocument {
    version: ModuleId,
    text: Bytes,
    _grant: Grant,
}

impl Documents {
    fn kept(&self) -> MutexGuard<'_, VecDeque<KeptDocument>> {
        self.0.lock().expect("no code panics under this lock")
    }

    fn find(&self, version: ModuleId) -> Option<Bytes> {
        let kept = self.kept();
        let found = kept.iter().find(|kept| kept.version == version)?;
        Some(found.text.clone())
    }

    /// Keeps a document if there is room. Removes documents of versions that are out of service.
    fn keep(&self, version: ModuleId, text: &Bytes, parts: &Parts, deployed: &Deployed) {
        let mut kept = self.kept();
        kept.retain(|kept| kept.version != version && deployed.is_current(kept.version));
        let mut held: usize = kept.iter().map(|kept| kept.text.len()).sum();
        while held + text.len() > DOCUMENTS_KEPT_BYTES_MAX
            && let Some(oldest) = kept.pop_front()
        {
            held -= oldest.text.len();
        }
        let budget = parts.router.memory().kind(MemoryKind::Modules);
        if text.len() <= DOCUMENTS_KEPT_BYTES_MAX
            && let Some(grant) = budget.try_take(text.len() as u64)
        {
            kept.push_back(KeptDocument {
                version,
                text: text.clone(),
                _grant: grant,
            });
        }
    }
}

/// `served` is the description of the server itself.
fn document(module: &Module, mut served: Value) -> Value {
    let call = served.pointer_mut(CALL_POINTER).map(Value::take).unwrap_or_default();
    let mut components = Components::default();
    for schema in ["CallAnswer", "Problem"] {
        components.take(schema, &served["components"]["schemas"]);
    }
    let procedures = module.schema.procedures.iter();
    let paths: Map<_, _> = procedures
        .map(|procedure| {
            let path = format!("/v1/call/{}/{}", module.name, procedure.name);
            let operation = operation(&module.name, procedure, &call, &mut components);
            (path, json!({"post": operation}))
        })
        .collect();
    json!({
        "openapi": served["openapi"],
        "info": {
            "title": module.name,
            "description": format!("Procedures of the module {}, version {}.", module.name, module.version),
            "version": module.version.to_string(),
        },
        // The URL is relative to this document, because a proxy may serve all of this below a path of its own.
        "servers": [{"url": "../../..", "description": "This server"}],
        "security": served["security"],
        "paths": paths,
        "components": {
            "schemas": components.schemas,
            "securitySchemes": served["components"]["securitySchemes"],
        },
    })
}

/// Describes a call of the procedure. The parts that all calls share come from the description of any call.
fn operation(module: &str, procedure: &ProcedureSchema, call: &Value, components: &mut Components) -> Value {
    let parameters = call["parameters"].as_array().into_iter().flatten();
    let headers: Vec<_> = parameters.filter(|parameter| parameter["in"] == "header").collect();
    let params = procedure.params.iter().map(|param| FieldInfo {
        name: param.name.clone(),
        ty: type_info(&param.ty),
    });
    let arguments = components.object(&params.collect::<Vec<_>>(), ValueDirection::In);
    let is_required = arguments["required"].as_array().is_some_and(|names| !names.is_empty());
    let result = components.schema_of(&type_info(&procedure.returns), ValueDirection::Out);
    let answer = json!({"allOf": [
        {"$ref": format!("{SCHEMAS}CallAnswer")},
        {"type": "object", "properties": {"result": result}, "required": ["result"]},
    ]});
    let problem = json!({"$ref": format!("{SCHEMAS}Problem")});
    let mut responses = json!({
        "200": {
            "description": "Committed",
            "headers": call["responses"]["200"]["headers"],
            "content": {"application/json": {"schema": answer}},
        },
        "default": {
            "description": "The server kept nothing of the call, unless the problem is outcome-unknown",
            "content": {"application/problem+json": {"schema": problem}},
        },
    });
    if !procedure.aborts.is_empty() {
        responses["422"] = aborted(&procedure.aborts, &problem);
    }
    json!({
        "tags": [module],
        "summary": procedure.docs.lines().next().unwrap_or_default(),
        "description": procedure.docs,
        "operationId": procedure.name,
        "parameters": headers,
        "requestBody": {"required": is_required, "content": {"application/json": {"schema": arguments}}},
        "responses": responses,
    })
}

/// Returns the answer to a call that the procedure aborts. The codes are examples: a module need not declare them all. Their type is that of
/// the problem, because generators of clients merge the two.
fn aborted(aborts: &[AbortSchema], problem: &Value) -> Value {
    let lines = aborts.iter().map(|abort| match abort.docs.is_empty() {
        true => format!("\n- `{}`", abort.code),
        false => format!("\n- `{}`: {}", abort.code, abort.docs),
    });
    let codes: Vec<_> = aborts.iter().map(|abort| &abort.code).collect();
    let schema = json!({"allOf": [
        problem,
        {"type": "object", "properties": {"code": {"type": ["string", "null"], "examples": codes}}},
    ]});
    json!({
        "description": format!(
            "The server kept nothing of the call: procedure-aborted, with one of these codes; or limit-exceeded, or cancelled\n{}",
            lines.collect::<String>()
        ),
        "content": {"application/problem+json": {"schema": schema}},
    })
}

impl Components {
    /// Takes a schema of the server, and the schemas that it refers to.
    fn take(&mut self, name: &str, served: &Value) {
        let Some(schema) = served.get(name) else { return };
        self.schemas.insert(name.to_owned(), schema.clone());
        if self.served.insert(name.to_owned()) {
            self.take_referred(schema, served);
        }
    }

    fn take_referred(&mut self, schema: &Value, served: &Value) {
        match schema {
            Value::Object(members) => members.iter().for_each(|(word, value)| match (&word[..], value) {
                ("$ref", Value::String(to)) => {
                    if let Some(name) = to.strip_prefix(SCHEMAS) {
                        self.take(name, served);
                    }
                }
                _ => self.take_referred(value, served),
            }),
            Value::Array(items) => items.iter().for_each(|item| self.take_referred(item, served)),
            _ => {}
        }
    }

    fn object(&mut self, fields: &[FieldInfo], way: ValueDirection) -> Value {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for field in fields {
            let may_be_left_out = matches!(field.ty, TypeInfo::Option { .. } | TypeInfo::Unit);
            if way == ValueDirection::Out || !may_be_left_out {
                required.push(&field.name);
            }
            properties.insert(field.name.clone(), self.schema_of(&field.ty, way));
        }
        json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
    }

    /// A reference to the component of a named struct. Where values look different as arguments, these have a component of their own.
    fn named(&mut self, name: &str, fields: &[FieldInfo], way: ValueDirection) -> Value {
        let known = self.named.entry(name.to_owned()).or_default();
        let at = known.iter().position(|known| known == fields).unwrap_or_else(|| {
            known.push(fields.to_vec());
            known.len() - 1
        });
        let mut component = match at {
            0 => name.to_owned(),
            at => format!("{name}{}", at + 1),
        };
        if self.served.contains(name) {
            component.push_str("Value");
        }
        if way == ValueDirection::In && fields.iter().any(differs_by_way) {
            component.push_str("Input");
        }
        let reference = json!({"$ref": format!("{SCHEMAS}{component}")});
        if !self.schemas.contains_key(&component) {
            let schema = self.object(fields, way);
            self.schemas.insert(component, schema);
        }
        reference
    }

    fn schema_of(&mut self, ty: &TypeInfo, way: ValueDirection) -> Value {
        let integer = |least: i64, most: i64| json!({"type": "integer", "minimum": least, "maximum": most});
        match ty {
            TypeInfo::Unit => json!({"type": "null"}),
            TypeInfo::Bool => json!({"type": "boolean"}),
            TypeInfo::I8 => integer(i8::MIN.into(), i8::MAX.into()),
            TypeInfo::I16 => integer(i16::MIN.into(), i16::MAX.into()),
            TypeInfo::I32 => integer(i32::MIN.into(), i32::MAX.into()),
            TypeInfo::U8 => integer(0, u8::MAX.into()),
            TypeInfo::U16 => integer(0, u16::MAX.into()),
            TypeInfo::U32 => integer(0, u32::MAX.into()),
            TypeInfo::I64 => text_or_integer(way, SIGNED_PATTERN),
            TypeInfo::U64 => text_or_integer(way, UNSIGNED_PATTERN),
            TypeInfo::F64 => json!({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}),
            // A number without loss is accepted, too. Clients made from this description send text, which never has a loss.
            TypeInfo::Decimal { scale } => json!({"type": "string", "pattern": decimal_pattern(*scale, way)}),
            TypeInfo::Text => json!({"type": "string"}),
            TypeInfo::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
            TypeInfo::Timestamp => json!({"type": "string", "format": "date-time"}),
            TypeInfo::Uuid => json!({"type": "string", "format": "uuid"}),
            TypeInfo::Option { item } => json!({"anyOf": [self.schema_of(item, way), {"type": "null"}]}),
            TypeInfo::List { item } => json!({"type": "array", "items": self.schema_of(item, way)}),
            TypeInfo::Struct {
                name: Some(name),
                fields,
            } => self.named(name, fields, way),
            TypeInfo::Struct { name: None, fields } => self.object(fields, way),
            TypeInfo::Enum { variants } => json!({"type": "string", "enum": variants}),
        }
    }
}

/// True if values of the member have one description as arguments and another as results.
fn differs_by_way(field: &FieldInfo) -> bool {
    fn differs(ty: &TypeInfo) -> bool {
        match ty {
            TypeInfo::I64 | TypeInfo::U64 | TypeInfo::Decimal { .. } => true,
            TypeInfo::Option { item } | TypeInfo::List { item } => differs(item),
            TypeInfo::Struct { fields, .. } => fields.iter().any(differs_by_way),
            _ => false,
        }
    }
    matches!(field.ty, TypeInfo::Option { .. } | TypeInfo::Unit) || differs(&field.ty)
}

/// Text on the way out; on the way in an integer is taken, too.
fn text_or_integer(way: ValueDirection, pattern: &str) -> Value {
    match way {
        ValueDirection::In => json!({"type": ["string", "integer"], "pattern": pattern}),
        ValueDirection::Out => json!({"type": "string", "pattern": pattern}),
    }
}

fn decimal_pattern(scale: u8, way: ValueDirection) -> String {
    match (scale, way) {
        (0, ValueDirection::Out) => "^-?[0-9]+$".into(),
        (_, ValueDirection::Out) => format!("^-?[0-9]+\\.[0-9]{{{scale}}}$"),
        (_, ValueDirection::In) => "^-?[0-9]+(\\.[0-9]+)?$".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_described_as_they_are_written_and_read() {
        let id = FieldInfo {
            name: "id".into(),
            ty: TypeInfo::I64,
        };
        let price = FieldInfo {
            name: "price".into(),
            ty: TypeInfo::Option {
                item: Box::new(TypeInfo::Decimal { scale: 2 }),
            },
        };
        let list = TypeInfo::List {
            item: Box::new(TypeInfo::Struct {
                name: None,
                fields: vec![id, price],
            }),
        };
        let mut components = Components::default();
        let out = components.schema_of(&list, ValueDirection::Out);
        assert_eq!(out["items"]["required"], json!(["id", "price"]));
        assert_eq!(out["items"]["properties"]["id"]["type"], "string");
        assert_eq!(
            out["items"]["properties"]["price"]["anyOf"][0]["pattern"],
            "^-?[0-9]+\\.[0-9]{2}$"
        );
        let taken = components.schema_of(&list, ValueDirection::In);
        assert_eq!(taken["items"]["required"], json!(["id"]));
        assert_eq!(taken["items"]["properties"]["id"]["type"], json!(["string", "integer"]));
        let price = &taken["items"]["properties"]["price"]["anyOf"][0];
        assert_eq!(price["type"], "string", "money never becomes a float in a client");
    }

    #[test]
    fn code_of_an_abort_has_the_type_that_it_has_in_the_problem() {
        let (code, docs) = ("unknown".to_owned(), String::new());
        let answer = aborted(&[AbortSchema { code, docs }], &json!({}));
        let aborted = &answer["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]["code"];
        assert_eq!(aborted["examples"], json!(["unknown"]));
        let served: Value = serde_json::from_str(include_str!("../../../sdk/api/openapi.json")).expect("JSON");
        assert_eq!(
            aborted["type"],
            served["components"]["schemas"]["Problem"]["properties"]["code"]["type"]
        );
    }

    #[test]
    fn a_named_struct_is_one_component_for_each_form_that_it_has() {
        let view = |ty| TypeInfo::Struct {
            name: Some("HoldView".into()),
            fields: vec![FieldInfo { name: "a".into(), ty }],
        };
        let mut components = Components::default();
        let mut name = |ty, way| {
            let schema = components.schema_of(&view(ty), way);
            let reference = schema["$ref"].as_str().expect("a reference");
            reference.strip_prefix(SCHEMAS).expect("to a schema").to_owned()
        };
        assert_eq!(name(TypeInfo::I64, ValueDirection::Out), "HoldView");
        assert_eq!(name(TypeInfo::I64, ValueDirection::Out), "HoldView");
        assert_eq!(name(TypeInfo::I64, ValueDirection::In), "HoldViewInput");
        assert_eq!(
            name(TypeInfo::Text, ValueDirection::In),
            "HoldView2",
            "another struct of this name"
        );
        assert_eq!(name(TypeInfo::Text, ValueDirection::Out), "HoldView2");
        let known: Vec<_> = components.schemas.keys().collect();
        assert_eq!(known, ["HoldView", "HoldView2", "HoldViewInput"]);
    }
}
