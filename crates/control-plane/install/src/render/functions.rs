//! Functions that Helm adds to Go's templates, as far as the chart uses them.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock, Weak},
};

use aws_lc_rs::digest;
use gotmpl::{Result, Template, TemplateError, Value};

/// Adds Helm's functions to a template; `include` renders the named templates of `templates`.
pub(super) fn register(template: Template, templates: Weak<OnceLock<Template>>) -> Template {
    register_conversions(template)
        .func("include", move |args| {
            let [Value::String(name), data] = args else {
                return Err(argument_error("include", "a name and a value"));
            };
            let all = templates.upgrade();
            let all = all.as_ref().and_then(|all| all.get());
            let all = all.ok_or_else(|| argument_error("include", "templates"))?;
            all.execute_template_to_string(name, data).map(string_value)
        })
        .func("quote", |args| {
            Ok(string_value(
                serde_json::Value::String(format_value(single_argument("quote", args)?))
                    .to_string(),
            ))
        })
        .func("nindent", |args| {
            indent("nindent", args).map(|text| string_value(format!("\n{text}")))
        })
        .func("default", |args| match args {
            [default, value] if !value.is_truthy() => Ok(default.clone()),
            [_, value] => Ok(value.clone()),
            [default] => Ok(default.clone()),
            _ => Err(argument_error("default", "a default and a value")),
        })
        .func("int", |args| {
            let value = single_argument("int", args)?;
            let number = match value {
                Value::String(text) => text.parse().unwrap_or(0),
                other => other.as_int().unwrap_or(0),
            };
            Ok(Value::Int(number))
        })
        .func("join", |args| {
            let [Value::String(separator), Value::List(list)] = args else {
                return Err(argument_error("join", "a separator and a list"));
            };
            let texts: Vec<_> = list.iter().map(format_value).collect();
            Ok(string_value(texts.join(separator)))
        })
        .func("list", |args| Ok(Value::List(args.into())))
        .func("dict", dict)
        .func("merge", merge)
        .func("omit", |args| {
            let [Value::Map(map), names @ ..] = args else {
                return Err(argument_error("omit", "a map and names"));
            };
            let names: Vec<String> = names.iter().map(format_value).collect();
            let kept = map
                .iter()
                .filter(|(key, _)| !names.iter().any(|name| **name == ***key));
            let kept = kept.map(|(key, value)| (key.clone(), value.clone()));
            Ok(Value::Map(Arc::new(kept.collect())))
        })
        .func("prepend", |args| {
            let [Value::List(list), first] = args else {
                return Err(argument_error("prepend", "a list and a value"));
            };
            let all: Vec<_> = [first].into_iter().chain(list.iter()).cloned().collect();
            Ok(Value::List(all.into()))
        })
        .func("trimSuffix", |args| {
            let [Value::String(suffix), Value::String(text)] = args else {
                return Err(argument_error("trimSuffix", "two texts"));
            };
            let cut = text.strip_suffix(&**suffix).unwrap_or(text);
            Ok(string_value(cut.to_owned()))
        })
        .func("kindIs", |args| {
            let [Value::String(kind), value] = args else {
                return Err(argument_error("kindIs", "a kind and a value"));
            };
            let own = match value {
                Value::Bool(_) => "bool",
                Value::String(_) => "string",
                Value::List(_) => "slice",
                Value::Map(_) => "map",
                Value::Nil => "invalid",
                _ => "number",
            };
            Ok(Value::Bool(own == &**kind))
        })
        .func("sha256sum", |args| {
            let text = format_value(single_argument("sha256sum", args)?);
            let hash = digest::digest(&digest::SHA256, text.as_bytes());
            let hex: String = hash.as_ref().iter().map(|b| format!("{b:02x}")).collect();
            Ok(string_value(hex))
        })
}

/// Adds functions that convert between template values and texts.
fn register_conversions(template: Template) -> Template {
    template
        .func("toYaml", |args| {
            let yaml = serde_saphyr::to_string(&to_json(single_argument("toYaml", args)?));
            let yaml = yaml.map_err(|error| TemplateError::Exec(format!("toYaml: {error}")))?;
            Ok(string_value(yaml.trim_end().to_owned()))
        })
        .func("toString", |args| {
            Ok(string_value(format_value(single_argument(
                "toString", args,
            )?)))
        })
        .func("fromYaml", |args| parse_yaml("fromYaml", args))
        .func("fromYamlArray", |args| parse_yaml("fromYamlArray", args))
        .func("hasKey", |args| {
            let [Value::Map(map), Value::String(name)] = args else {
                return Err(argument_error("hasKey", "a map and a name"));
            };
            Ok(Value::Bool(map.iter().any(|(key, _)| **key == **name)))
        })
        .func("fail", |args| {
            Err(TemplateError::Exec(format_value(single_argument(
                "fail", args,
            )?)))
        })
        .func("trim", |args| {
            Ok(string_value(
                format_value(single_argument("trim", args)?)
                    .trim()
                    .to_owned(),
            ))
        })
        .func("toJson", |args| {
            Ok(string_value(escape_html(
                &to_json(single_argument("toJson", args)?).to_string(),
            )))
        })
}

/// Parses YAML that the chart itself contains or has rendered.
fn parse_yaml(name: &'static str, args: &[Value]) -> Result<Value> {
    let yaml: serde_json::Value =
        serde_saphyr::from_str(&format_value(single_argument(name, args)?))
            .map_err(|error| TemplateError::Exec(format!("{name}: {error}")))?;
    gotmpl::to_value(&yaml).map_err(|error| TemplateError::Exec(format!("{name}: {error}")))
}

fn dict(args: &[Value]) -> Result<Value> {
    let (pairs, []) = args.as_chunks() else {
        return Err(argument_error("dict", "pairs of a name and a value"));
    };
    let entries = pairs
        .iter()
        .map(|[key, value]| (format_value(key).into(), value.clone()));
    Ok(Value::Map(Arc::new(entries.collect())))
}

/// Merges maps into one. The chart merges only maps with distinct keys.
fn merge(args: &[Value]) -> Result<Value> {
    let mut merged = BTreeMap::new();
    for arg in args {
        let Value::Map(map) = arg else {
            return Err(argument_error("merge", "maps"));
        };
        merged.extend(map.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    Ok(Value::Map(Arc::new(merged)))
}

/// Escapes JSON as Go's encoder does, which makes it safe inside HTML.
fn escape_html(json: &str) -> String {
    let text = json.replace('&', "\\u0026").replace('<', "\\u003c");
    text.replace('>', "\\u003e")
}

fn single_argument<'a>(name: &'static str, args: &'a [Value]) -> Result<&'a Value> {
    match args {
        [value] => Ok(value),
        _ => Err(argument_error(name, "one value")),
    }
}

fn indent(name: &'static str, args: &[Value]) -> Result<String> {
    let [count, Value::String(text)] = args else {
        return Err(argument_error(name, "a number and a text"));
    };
    let count = count.as_int().and_then(|count| usize::try_from(count).ok());
    let pad = " ".repeat(count.ok_or_else(|| argument_error(name, "a number"))?);
    let lines: Vec<_> = text
        .split('\n')
        .map(|line| format!("{pad}{line}"))
        .collect();
    Ok(lines.join("\n"))
}

fn argument_error(name: &'static str, expected: &'static str) -> TemplateError {
    TemplateError::Exec(format!("{name} needs {expected}"))
}

fn string_value(text: String) -> Value {
    Value::String(text.into())
}

/// Formats a template value as Go's `fmt` does.
fn format_value(value: &Value) -> String {
    match value {
        Value::Nil => String::new(),
        Value::String(text) => text.to_string(),
        other => to_json(other).to_string(),
    }
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::Int(number) => (*number).into(),
        Value::Uint(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::String(text) => text.as_ref().into(),
        Value::List(list) => list.iter().map(to_json).collect(),
        Value::Map(map) => {
            let entries = map
                .iter()
                .map(|(key, value)| (key.to_string(), to_json(value)));
            serde_json::Value::Object(entries.collect())
        }
        _ => serde_json::Value::Null,
    }
}
