// The limit: mj_step in plain C on the same models and threads, with resets, and actions from a table.
#include <math.h>
#include <pthread.h>
#include <string.h>

#include <mujoco/mujoco.h>

typedef struct {
  const mjModel** models;
  int first, stride, num_models, steps, frame_skip, num_actions;
  const double* actions;  // [num_actions][nu]
  double low, angle;      // an episode ends below this height or beyond this angle
} Work;

static void start(const mjModel* m, mjData* d, unsigned* seed) {
  mj_resetData(m, d);
  for (int i = 0; i < m->nq; i++) {
    *seed = *seed * 1664525u + 1013904223u;
    d->qpos[i] += 1e-2 * (*seed / 4294967296.0) - 5e-3;
  }
  mj_forward(m, d);
}

static void* run(void* argument) {
  const Work* work = argument;
  for (int n = work->first; n < work->num_models; n += work->stride) {
    const mjModel* m = work->models[n];
    mjData* d = mj_makeData(m);
    unsigned seed = 1 + n;
    start(m, d, &seed);
    for (int t = 0; t < work->steps; t++) {
      const double* action = work->actions + ((n * 7919 + t) % work->num_actions) * m->nu;
      memcpy(d->ctrl, action, m->nu * sizeof(double));
      for (int k = 0; k < work->frame_skip; k++) mj_step(m, d);
      if (!(d->qpos[1] > work->low) || fabs(d->qpos[2]) > work->angle) start(m, d, &seed);
    }
    mj_deleteData(d);
  }
  return 0;
}

void loop(const mjModel** models, int num_models, int steps, int frame_skip, const double* actions, int num_actions,
          double low, double angle, int num_threads) {
  pthread_t threads[64];
  Work work[64];
  for (int i = 0; i < num_threads; i++) {
    work[i] = (Work){models, i, num_threads, num_models, steps, frame_skip, num_actions, actions, low, angle};
    pthread_create(&threads[i], 0, run, &work[i]);
  }
  for (int i = 0; i < num_threads; i++) pthread_join(threads[i], 0);
}
