//! Modules that insert rows of zeros, in as many versions as a test needs.

pub const K: &str = r#"{"name":"k","type":"i64","nullable":false}"#;
pub const B: &str = r#"{"name":"b","type":"i64","nullable":false}"#;

/// A module over tables, with a procedure `put(k)`, which inserts a row of zeros into the first, and procedures that do nothing.
pub struct Parts<'a> {
    /// Name, columns and the columns of the primary key of each table; `u was t` has another name than before.
    pub tables: &'a [(&'a str, &'a [&'a str], &'a str)],
    pub row_bytes: u64,
    pub procedures: &'a [&'a str],
    pub migration: Option<&'a str>,
    /// Body of the migration.
    pub body: &'a str,
}

/// Table `t` of two columns, and `put` alone.
pub const TABLE: Parts<'_> = Parts {
    tables: &[("t", &[K, B], r#""k""#)],
    row_bytes: 16,
    procedures: &[],
    migration: None,
    body: "",
};

pub fn module(parts: &Parts<'_>) -> Vec<u8> {
    let tables = parts.tables.iter().map(|(name, columns, key)| {
        let (name, was) = name.split_once(" was ").unwrap_or((name, ""));
        let was = match was {
            "" => String::new(),
            was => format!(r#""was":"{was}","#),
        };
        format!(
            r#"{{"name":"{name}",{was}"columns":[{}],"primary_key":[{key}],"placement":{{"by":"k"}}}}"#,
            columns.join(",")
        )
    });
    let tables: Vec<_> = tables.collect();
    let put = r#"{"name":"put","params":[{"name":"k","type":"i64"}],"returns":"unit","partitioning":{"by":["k"]}}"#;
    let others = parts.procedures.iter().map(|name| {
        format!(r#"{{"name":"{name}","params":[],"returns":"unit","read_only":true,"partitioning":"any"}}"#)
    });
    let procedures: Vec<_> = std::iter::once(put.to_owned()).chain(others).collect();
    let migration = parts
        .migration
        .map_or(String::new(), |name| format!(r#","on_deploy":"{name}""#));
    let description = format!(
        r#"{{"abi":1,"tables":[{}],"procedures":[{}]{migration}}}"#,
        tables.join(","),
        procedures.join(",")
    );
    let section: String = description.bytes().map(|byte| format!("\\{byte:02x}")).collect();
    let nothing =
        |name: &&str| format!(r#"(func (export "reprise_call_{name}") (param i32) (result i32) i32.const 0)"#);
    let exports: String = parts.procedures.iter().map(nothing).collect();
    let on_deploy = parts.migration.map_or(String::new(), |_| {
        let body = parts.body;
        format!(r#"(func (export "reprise_on_deploy") (param i32) (result i32) {body} i32.const 0)"#)
    });
    let text = format!(
        r#"(module
            (import "reprise1" "args_read" (func $args_read (param i32)))
            (import "reprise1" "insert" (func $insert (param i32 i64) (result i64)))
            (memory (export "memory") 1)
            (func (export "reprise_call_put") (param i32) (result i32)
                (call $args_read (i32.const 0))
                (drop (call $insert (i32.const 0) (i64.const {row})))
                (i32.const 0))
            {exports}{on_deploy}
            (@custom "reprise.describe" "{section}"))"#,
        row = parts.row_bytes << 32,
    );
    wat::parse_str(text).expect("a module")
}
