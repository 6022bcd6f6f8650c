//! `/v1/modules/{module}/openapi.json`: the procedures of a module as operations of their own, for generators of typed clients.

use axum::{Json, extract::State};
use reprise_abi::ProcedureSchema;
use reprise_api::{Problem, TypeInfo};
use reprise_router::Module;
use serde_json::{Map, Value, json};

use crate::{docs, front::Name, refusal::Refusal, schema::type_info, state::AppState, target::no_module};

/// What every call of the server is described by.
const CALL_POINTER: &str = "/paths/~1v1~1call~1{module}~1{procedure}/post";
/// Integers of 64 bits as text.
const SIGNED_PATTERN: &str = "^-?[0-9]{1,19}$";
const UNSIGNED_PATTERN: &str = "^[0-9]{1,20}$";

/// Which way a value goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// Describes a module's procedures
///
/// An OpenAPI document with one operation for each procedure of the version in service: its arguments and its result by their types, and
/// what the module says of it.
#[utoipa::path(
    get,
    path = "/v1/modules/{module}/openapi.json",
    tag = "Modules",
    params(("module" = String, Path)),
    responses(
        (status = 200, description = "An OpenAPI document", body = Object),
        (status = 404, description = "not-found", body = Problem, content_type = "application/problem+json"),
    )
)]
pub async fn module_openapi(State(state): State<AppState>, Name(name): Name) -> Result<Json<Value>, Refusal> {
    let deployed = state.router.deployed();
    let module = deployed.current.get(&name).ok_or_else(|| no_module(&deployed, &name))?;
    let served = serde_json::to_value(docs::openapi());
    let served = served.map_err(|_| Refusal::internal("the API's description can't be written"))?;
    Ok(Json(document(module, served)))
}

/// `served` is the description of the server itself.
fn document(module: &Module, mut served: Value) -> Value {
    let call = served.pointer_mut(CALL_POINTER).map(Value::take).unwrap_or_default();
    let procedures = module.schema.procedures.iter();
    let paths: Map<_, _> = procedures
        .map(|procedure| {
            let path = format!("/v1/call/{}/{}", module.name, procedure.name);
            (path, json!({"post": operation(&module.name, procedure, &call)}))
        })
        .collect();
    json!({
        "openapi": served["openapi"],
        "info": {
            "title": module.name,
            "description": format!("Procedures of the module {}, version {}.", module.name, module.version),
            "version": module.version.to_string(),
        },
        "security": served["security"],
        "paths": paths,
        "components": served["components"],
    })
}

/// A call of the procedure; what is the same of all of them is taken from the description of any call.
fn operation(module: &str, procedure: &ProcedureSchema, call: &Value) -> Value {
    let parameters = call["parameters"].as_array().into_iter().flatten();
    let headers: Vec<_> = parameters.filter(|parameter| parameter["in"] == "header").collect();
    let fields = procedure.params.iter();
    let fields: Vec<_> = fields.map(|param| (&param.name[..], type_info(&param.ty))).collect();
    let arguments = object(fields.iter().map(|(name, ty)| (*name, ty)), Way::In);
    let is_required = arguments["required"].as_array().is_some_and(|names| !names.is_empty());
    let result = schema_of(&type_info(&procedure.returns), Way::Out);
    let answer = json!({"allOf": [
        {"$ref": "#/components/schemas/CallAnswer"},
        {"type": "object", "properties": {"result": result}, "required": ["result"]},
    ]});
    let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
    json!({
        "tags": [module],
        "summary": procedure.docs.lines().next().unwrap_or_default(),
        "description": procedure.docs,
        "operationId": procedure.name,
        "parameters": headers,
        "requestBody": {"required": is_required, "content": {"application/json": {"schema": arguments}}},
        "responses": {
            "200": {
                "description": "Committed",
                "headers": call["responses"]["200"]["headers"],
                "content": {"application/json": {"schema": answer}},
            },
            "default": {
                "description": "Left nothing, unless it is outcome-unknown",
                "content": {"application/problem+json": problem},
            },
        },
    })
}

fn object<'t>(fields: impl Iterator<Item = (&'t str, &'t TypeInfo)>, way: Way) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, ty) in fields {
        let may_be_left_out = matches!(ty, TypeInfo::Option { .. } | TypeInfo::Unit);
        if way == Way::Out || !may_be_left_out {
            required.push(name);
        }
        properties.insert(name.to_owned(), schema_of(ty, way));
    }
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn schema_of(ty: &TypeInfo, way: Way) -> Value {
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
        TypeInfo::I64 => text_or(way, "integer", SIGNED_PATTERN),
        TypeInfo::U64 => text_or(way, "integer", UNSIGNED_PATTERN),
        TypeInfo::F64 => json!({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}),
        TypeInfo::Decimal { scale } => text_or(way, "number", &decimal_pattern(*scale, way)),
        TypeInfo::Text => json!({"type": "string"}),
        TypeInfo::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
        TypeInfo::Timestamp => json!({"type": "string", "format": "date-time"}),
        TypeInfo::Uuid => json!({"type": "string", "format": "uuid"}),
        TypeInfo::Option { item } => json!({"anyOf": [schema_of(item, way), {"type": "null"}]}),
        TypeInfo::List { item } => json!({"type": "array", "items": schema_of(item, way)}),
        TypeInfo::Struct { fields } => object(fields.iter().map(|field| (&field.name[..], &field.ty)), way),
        TypeInfo::Enum { variants } => json!({"type": "string", "enum": variants}),
    }
}

/// Text on the way out; on the way in a number without loss is taken, too.
fn text_or(way: Way, number: &str, pattern: &str) -> Value {
    match way {
        Way::In => json!({"type": ["string", number], "pattern": pattern}),
        Way::Out => json!({"type": "string", "pattern": pattern}),
    }
}

fn decimal_pattern(scale: u8, way: Way) -> String {
    match (scale, way) {
        (0, Way::Out) => "^-?[0-9]+$".into(),
        (_, Way::Out) => format!("^-?[0-9]+\\.[0-9]{{{scale}}}$"),
        (_, Way::In) => "^-?[0-9]+(\\.[0-9]+)?$".into(),
    }
}

#[cfg(test)]
mod tests {
    use reprise_api::FieldInfo;

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
                fields: vec![id, price],
            }),
        };
        let out = schema_of(&list, Way::Out);
        assert_eq!(out["items"]["required"], json!(["id", "price"]));
        assert_eq!(out["items"]["properties"]["id"]["type"], "string");
        assert_eq!(
            out["items"]["properties"]["price"]["anyOf"][0]["pattern"],
            "^-?[0-9]+\\.[0-9]{2}$"
        );
        let taken = schema_of(&list, Way::In);
        assert_eq!(taken["items"]["required"], json!(["id"]));
        assert_eq!(taken["items"]["properties"]["id"]["type"], json!(["string", "integer"]));
    }
}
