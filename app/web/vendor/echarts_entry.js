// What the pages use of ECharts, as one ES module: build.sh makes static/vendor/echarts.js of it.

import { BarChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  AriaComponent, DataZoomInsideComponent, GridComponent, LegendPlainComponent, MarkAreaComponent, MarkLineComponent,
  ParallelComponent, TooltipComponent, VisualMapContinuousComponent,
} from "echarts/components";
import { use } from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";

use([
  AriaComponent, BarChart, CanvasRenderer, CustomChart, DataZoomInsideComponent, GridComponent, HeatmapChart,
  LegendPlainComponent, LineChart, MarkAreaComponent, MarkLineComponent, ParallelChart, ParallelComponent,
  ScatterChart, TooltipComponent, VisualMapContinuousComponent,
]);

export { getInstanceByDom, init, version } from "echarts/core";
