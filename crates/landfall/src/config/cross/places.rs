//! Where destinations lie: none inside a Delta table of another sink, no table around what this process keeps, and nothing
//! among the channels. Whatever cleans a table up deletes what lies below it and is not its own.

use std::path::{Component, Path, PathBuf};

use super::super::finding::{Finding, codes};
use super::super::section::Findings;
use super::super::sinks::{SinkConfig, SinkKind};
use super::super::{Config, PipelineConfig};

/// The directory of a sink, if it has one.
struct Place<'a> {
    pipeline: &'a PipelineConfig,
    sink: &'a SinkConfig,
    at: PathBuf,
    is_table: bool,
}

pub(super) fn check(config: &Config, findings: &Findings) {
    let data_dir = whole(&config.data_dir);
    let channels = data_dir.join("channels");
    let places: Vec<Place<'_>> = config.pipelines.iter().flat_map(of_pipeline).collect();
    for place in &places {
        let refuse = |text: String, help: &str| {
            findings.push(Finding::error(codes::CONTRADICTION, Some(place.sink.mark), text).help(help));
        };
        let (sink, pipeline) = (&place.sink.name, &place.pipeline.name);
        if place.is_table && data_dir.starts_with(&place.at) {
            refuse(
                format!(
                    "the table of sink `{sink}` of pipeline `{pipeline}` lies around `data_dir`, {}",
                    data_dir.display()
                ),
                "a clean-up of the table (VACUUM) would delete channels and state: give it a path of its own",
            );
        } else if place.at.starts_with(&channels) {
            refuse(
                format!("sink `{sink}` of pipeline `{pipeline}` lies inside `data_dir`, among the channels"),
                "that folder is for channels alone: give the sink a path of its own",
            );
        }
        let outer = places.iter().find(|outer| {
            outer.is_table && place.at.starts_with(&outer.at) && !(place.is_table && place.at == outer.at)
        });
        if let Some(outer) = outer {
            refuse(
                format!(
                    "sink `{sink}` of pipeline `{pipeline}` lies inside the table of sink `{}` of pipeline `{}`, {}",
                    outer.sink.name,
                    outer.pipeline.name,
                    outer.at.display()
                ),
                "a clean-up of the outer table (VACUUM) would delete what lies in it: give each a path of its own",
            );
        }
    }
}

fn of_pipeline(pipeline: &PipelineConfig) -> impl Iterator<Item = Place<'_>> {
    pipeline.sinks.iter().filter_map(move |sink| {
        let (path, is_table) = match &sink.kind {
            SinkKind::Delta(delta) => (&delta.path, true),
            SinkKind::Files(files) => (&files.path, false),
            SinkKind::Channel(_) => return None,
        };
        Some(Place { pipeline, sink, at: whole(path), is_table })
    })
}

/// From the root on, without `.` and `..`; links are not followed.
pub(super) fn whole(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut whole = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => {
                whole.pop();
            }
            Component::CurDir => {}
            part => whole.push(part),
        }
    }
    whole
}
